"""The defects of dcgm-exporter in Kubernetes and with batch jobs, and for each the test that shows it absent here.

Rule 1: a row is one defect and the tests that would fail if otelgpu had it. They are named as objects, so that a test
        which is renamed or removed is missed at once.
"""

from collections.abc import Callable

import pytest

from tests import (
    test_dra,
    test_gpu_state,
    test_jobs,
    test_kubernetes,
    test_kubernetes_api,
    test_kubernetes_manifest,
    test_owners,
    test_processes,
    test_processes_pods,
)

Test = Callable[..., None]

DEFECTS: dict[str, tuple[Test, ...]] = {
    # the kubelet
    "the kubelet is dialled and asked on every scrape, once for each group of entities": (
        test_kubernetes.test_the_kubelet_is_asked_at_its_pace_only,
        test_kubernetes.test_a_scrape_never_waits_for_the_kubelet,
    ),
    "an answer of more than 4 MiB is refused": (
        test_kubernetes.test_five_hundred_pods_in_more_than_four_mebibytes_are_read,
    ),
    "nothing is said when the socket is missing": (
        test_kubernetes.test_each_failure_says_what_is_wrong,
        test_kubernetes.test_a_kubelet_that_comes_late_is_found,
    ),
    "any other failure is a warning for each group and scrape": (
        test_kubernetes.test_a_fault_is_logged_when_it_appears_and_when_it_clears,
    ),
    "one failed question takes all pod labels away": (test_kubernetes.test_the_last_answer_holds_until_it_expires,),
    "nvidia.com/gpu.shared and vendors' names count only when they are configured, and only exactly": (
        test_kubernetes.test_gpus_are_told_by_the_name_of_their_resource,
    ),
    # device ids
    "which form of id is meant has to be configured, and a wrong word makes every scrape fail": (
        test_kubernetes.test_an_id_is_recognised_in_every_form,
        test_kubernetes_api.test_a_wrong_value_is_refused_at_the_start,
    ),
    "nvidiaN is taken for GPU N of DCGM, whatever its device file": (
        test_kubernetes.test_a_device_file_is_found_by_its_minor_number,
    ),
    "a plain index matches nothing": (test_kubernetes.test_an_id_is_recognised_in_every_form,),
    "MIG ids are looked up in NVML for each group and scrape": (
        test_kubernetes.test_owners_take_no_question_to_the_driver,
    ),
    "nobody is told that no id matches": (test_kubernetes.test_when_nothing_matches_the_log_has_both_sides,),
    # one owner
    "of two containers that list a device the last one wins": (
        test_kubernetes.test_two_containers_on_one_gpu_do_not_push_each_other_out,
        test_kubernetes.test_the_order_of_the_kubelets_answer_does_not_matter,
    ),
    "a MIG device without its GPU matches what has no UUID, and the handler panics": (
        test_kubernetes.test_an_id_that_means_no_device_here_owns_nothing,
        test_kubernetes.test_every_series_of_an_instance_carries_its_pod,
    ),
    # sharing
    "sums over pods are multiplied by the number of sharers": (
        test_kubernetes.test_sums_over_a_shared_gpu_are_true,
        test_owners.test_a_shared_gpu_is_shown_once_and_its_owners_in_a_family_of_their_own,
    ),
    "the pod's total stands on each of its containers' and replicas' rows": (
        test_owners.test_virtual_gpus_never_pass_the_devices_use_off_as_a_pods,
        test_owners.test_a_container_with_two_replicas_of_a_gpu_is_its_only_owner,
        test_processes_pods.test_virtual_gpus_show_what_each_pod_uses,
    ),
    "pod labels and UIDs are missing with shared and claimed GPUs": (
        test_kubernetes_api.test_uids_and_labels_are_shown_in_every_mode,
        test_dra.test_claims_go_with_every_mode,
    ),
    "graphics processes are left out": (test_processes.test_a_process_that_is_on_two_lists_counts_once,),
    "process ids of one GPU are looked up for another, and kept": (
        test_processes.test_a_process_id_that_is_used_again_is_another_process,
    ),
    "samples of use are read from time 0 on, so that old ones are mixed in": (
        test_processes.test_an_old_sample_says_nothing,
    ),
    "where no UID is known all pods are one": (test_processes_pods.test_a_pod_whose_name_nobody_tells_goes_by_its_uid,),
    # claims
    "only v1beta1 of ResourceSlices is known": (test_dra.test_the_newest_version_that_is_offered_is_asked,),
    "the start waits for ResourceSlices without a limit": (test_dra.test_a_cluster_without_it_costs_only_the_claims,),
    "the ResourceSlices of the whole cluster are watched": (
        test_dra.test_the_newest_version_that_is_offered_is_asked,
        test_dra.test_other_nodes_and_drivers_are_left_alone,
    ),
    "a claimed MIG device is looked for by its parent, and never found": (
        test_dra.test_a_mig_claim_is_found_by_its_uuid_or_its_place,
    ),
    "a device that a slice no longer lists stays": (
        test_dra.test_a_slice_that_changes_is_followed,
        test_dra.test_only_the_newest_generation_of_a_pool_counts,
    ),
    # metadata
    "pods are watched though no setting needs it": (
        test_kubernetes_api.test_without_a_setting_that_needs_it_the_api_server_is_not_asked,
    ),
    "without NODE_NAME the pods of the whole cluster are watched": (
        test_kubernetes_api.test_without_the_nodes_name_nothing_is_asked,
        test_kubernetes_api.test_only_this_nodes_pods_and_their_metadata_are_asked_for,
    ),
    "without the right to list pods errors are logged for ever": (
        test_kubernetes_api.test_what_is_forbidden_costs_only_itself,
    ),
    "a comma splits a regular expression": (test_kubernetes_api.test_a_pattern_may_hold_commas,),
    "when every regular expression is bad every label is let through": (
        test_kubernetes_api.test_a_wrong_value_is_refused_at_the_start,
    ),
    "a pod's label named gpu, device or UUID, or one that begins with a digit, breaks the node's page": (
        test_kubernetes_api.test_no_label_of_a_pod_breaks_the_page_or_passes_for_ours,
    ),
    "of two labels that end as one name a random one survives": (
        test_kubernetes_api.test_no_label_of_a_pod_breaks_the_page_or_passes_for_ours,
    ),
    "the rights and the token come only with some switches of the chart": (
        test_kubernetes_manifest.test_the_role_grants_what_is_asked_and_nothing_else,
    ),
    "memory grows with every pod that ever ran": (
        test_kubernetes.test_owners_that_come_and_go_use_up_nothing,
        test_kubernetes_api.test_pods_that_come_and_go_leave_nothing_behind,
    ),
    "the exporter's own pod may pass for the user of a GPU": (
        test_kubernetes.test_the_exporters_own_pod_owns_nothing,
        test_kubernetes.test_the_exporters_own_pod_is_known_without_any_setting,
    ),
    "what nobody holds cannot be told from what nobody knows": (
        test_gpu_state.test_before_the_kubelet_has_answered_nothing_is_said,
    ),
    # jobs
    "job ids are taken verbatim: empty lines, CR, and quotes that break the page": (
        test_jobs.test_jobs_are_trimmed_and_escaped,
    ),
    "a long line or an unreadable file answers the scrape with 500": (test_jobs.test_a_bad_file_costs_only_itself,),
    "the folder is read in full on every scrape": (test_jobs.test_a_file_is_read_again_only_when_it_has_changed,),
    "a folder that is missing later is an error on each scrape": (
        test_jobs.test_a_folder_that_is_not_there_yet_is_waited_for,
    ),
    "the file of GPU 0 multiplies the series of CPU 0": (test_jobs.test_a_job_on_gpu_0_is_not_one_on_cpu_0,),
    "a hanging disk hangs the scrape": (test_jobs.test_a_disk_that_hangs_holds_up_no_page,),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_of_dcgm_exporter_is_shown_to_be_absent(defect: str) -> None:
    """A drop-in replacement is worth its name when it drops the defects: each needs a test that is run."""
    for test in DEFECTS[defect]:
        marks = [mark.name for mark in getattr(test, "pytestmark", [])]

        assert test.__name__.startswith("test_")
        assert test.__module__.rpartition(".")[2].startswith("test_")
        assert not {"skip", "xfail", "soak", "gpu"} & set(marks)
