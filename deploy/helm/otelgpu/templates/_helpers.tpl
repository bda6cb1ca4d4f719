{{- define "otelgpu.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "otelgpu.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains (include "otelgpu.name" .) .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "otelgpu.name" .) | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "otelgpu.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride }}
{{- end }}

{{- define "otelgpu.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "otelgpu.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- /* The version is in no selector: a selector cannot be changed. */}}
{{- define "otelgpu.selector" -}}
app.kubernetes.io/name: {{ include "otelgpu.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- /* Of a dict: `root`, and `more` labels of one kind of object. One map, since two of them may have the same key. */}}
{{- define "otelgpu.metadata" -}}
namespace: {{ include "otelgpu.namespace" .root | quote }}
{{ include "otelgpu.labels" . }}
{{- end }}

{{- define "otelgpu.labels" -}}
labels:
  {{- include "otelgpu.selector" .root | nindent 2 }}
  {{- /* Flux and others give versions a `+`, which a label may not have. */}}
  app.kubernetes.io/version: {{ .root.Chart.AppVersion | replace "+" "_" | quote }}
  app.kubernetes.io/managed-by: {{ .root.Release.Service }}
  helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
  {{- with mergeOverwrite (dict) (default (dict) .root.Values.commonLabels) (default (dict) .more) }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "otelgpu.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (default (.Chart.AppVersion | replace "+" "_") .Values.image.tag) }}
{{- end }}
{{- end }}

{{- /* Not empty where the API server is asked. */}}
{{- define "otelgpu.asksApiServer" -}}
{{- if and .Values.kubernetes.enabled (or .Values.kubernetes.enablePodLabels .Values.kubernetes.enablePodUID .Values.kubernetesDRA.enabled (ne .Values.processes.by "off")) -}}
yes
{{- end }}
{{- end }}

{{- /* Not empty where the page is guarded. */}}
{{- define "otelgpu.guarded" -}}
{{- if or .Values.tlsServerConfig.enabled .Values.webConfig.existingSecret -}}
yes
{{- end }}
{{- end }}

{{- define "otelgpu.address" -}}
{{- $given := default "" .Values.service.address }}
{{- $end := print ":" .Values.service.port }}
{{- if and $given (not (hasSuffix $end $given)) }}
{{- fail (printf "service.address: %s does not end in service.port, %s" $given $end) }}
{{- end }}
{{- if regexMatch "^(127[.]|localhost:|.::1])" $given }}
{{- fail (printf "service.address: neither the kubelet's probes nor Prometheus reach %s" $given) }}
{{- end }}
{{- default $end $given }}
{{- end }}

{{- /* Not empty where all device files of the driver come over CDI. */}}
{{- define "otelgpu.cdi" -}}
{{- if or .Values.cdi.enabled (and .Values.mig.monitor (not .Values.mig.sysAdmin)) -}}
yes
{{- end }}
{{- end }}

{{- /* Not empty where a client's certificate may be asked for. */}}
{{- define "otelgpu.asksClients" -}}
{{- if ne (default "NoClientCert" .Values.tlsServerConfig.clientAuthType) "NoClientCert" -}}
yes
{{- end }}
{{- end }}

{{- /* Not empty where DCGM's engine runs in the pod. */}}
{{- define "otelgpu.dcgmEngine" -}}
{{- if and .Values.dcgm.enabled (not .Values.dcgm.address) -}}
yes
{{- end }}
{{- end }}

{{- define "otelgpu.dcgmImage" -}}
{{- printf "%s:%s" .Values.dcgm.image.repository .Values.dcgm.image.tag }}
{{- end }}

{{- define "otelgpu.annotations" -}}
{{- $cdi := ternary (dict "nvidia.cdi.k8s.io/container.otelgpu" "management.nvidia.com/gpu=all") (dict) (eq (include "otelgpu.cdi" .) "yes") }}
{{- $engine := ternary (dict "kubectl.kubernetes.io/default-container" "otelgpu" "nvidia.cdi.k8s.io/container.dcgm" "management.nvidia.com/gpu=all") (dict) (eq (include "otelgpu.dcgmEngine" .) "yes") }}
{{- with mergeOverwrite $cdi $engine (default (dict) .Values.podAnnotations) }}
{{- toYaml . }}
{{- end }}
{{- end }}

{{- /* What the chart sets; a name that extraEnv has too is left to it. */}}
{{- define "otelgpu.env" -}}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: NVIDIA_VISIBLE_DEVICES
  value: {{ ternary "management.nvidia.com/gpu=all" "all" (eq (include "otelgpu.cdi" .) "yes") }}
- name: NVIDIA_DRIVER_CAPABILITIES
  value: utility
- name: OTELGPU_SERVER_LISTEN
  value: {{ include "otelgpu.address" . | quote }}
{{- if .Values.webConfig.existingSecret }}
- name: OTELGPU_SERVER_WEB_CONFIG
  value: /etc/otelgpu/web/web-config.yml
{{- else if .Values.tlsServerConfig.enabled }}
- name: OTELGPU_SERVER_WEB_CONFIG
  value: /etc/otelgpu/files/web-config.yml
{{- end }}
{{- if .Values.config }}
- name: OTELGPU_CONFIG
  value: /etc/otelgpu/files/otelgpu.yaml
{{- end }}
{{- if .Values.customMetrics }}
- name: OTELGPU_FIELDS
  value: /etc/otelgpu/files/counters.csv
{{- else if .Values.fields }}
- name: OTELGPU_FIELDS
  value: {{ join "," .Values.fields | quote }}
{{- end }}
{{- with .Values.kubernetes }}
{{- if .enabled }}
- name: OTELGPU_KUBERNETES_ENABLED
  value: "true"
- name: OTELGPU_KUBERNETES_SOCKET
  value: {{ printf "%s/kubelet.sock" $.Values.kubeletPath | quote }}
{{- end }}
{{- if .enablePodUID }}
- name: OTELGPU_KUBERNETES_POD_UID
  value: "true"
{{- end }}
{{- if .enablePodLabels }}
- name: OTELGPU_KUBERNETES_POD_LABELS
  value: "true"
{{- with .podLabelAllowlistRegex }}
- name: OTELGPU_KUBERNETES_POD_LABEL_ALLOW
  value: {{ join "," . | quote }}
{{- end }}
{{- end }}
{{- if .virtualGPUs }}
- name: OTELGPU_KUBERNETES_VIRTUAL_GPUS
  value: "true"
{{- end }}
{{- end }}
{{- if .Values.kubernetesDRA.enabled }}
- name: OTELGPU_KUBERNETES_DRA
  value: "true"
{{- end }}
{{- if ne .Values.processes.by "off" }}
- name: OTELGPU_PROCESSES_BY
  value: {{ .Values.processes.by }}
{{- end }}
{{- if .Values.mig.sysAdmin }}
- name: NVIDIA_MIG_MONITOR_DEVICES
  value: all
{{- end }}
{{- if ne .Values.mig.parentValues "once" }}
- name: OTELGPU_MIG_PARENT_VALUES
  value: {{ .Values.mig.parentValues }}
{{- end }}
{{- if .Values.dcgm.enabled }}
- name: OTELGPU_SOURCE
  value: dcgm
- name: OTELGPU_DCGM_ADDRESS
  value: {{ default "127.0.0.1:5555" .Values.dcgm.address | quote }}
- name: OTELGPU_DCGM_LIBRARY
  value: /opt/dcgm
{{- end }}
{{- with .Values.otlp }}
{{- if .enabled }}
- name: OTELGPU_OTLP_ENDPOINT
  value: {{ .endpoint | quote }}
- name: OTELGPU_OTLP_PROTOCOL
  value: {{ .protocol }}
- name: OTELGPU_OTLP_INTERVAL
  value: {{ .interval | quote }}
- name: OTELGPU_OTLP_TEMPORALITY
  value: {{ .temporality }}
- name: OTELGPU_OTLP_EVENTS
  value: {{ .events | quote }}
{{- with .headersSecret }}
- name: OTELGPU_OTLP_HEADERS
  valueFrom: {secretKeyRef: {name: {{ . | quote }}, key: headers}}
{{- end }}
{{- if .caSecret }}
- name: OTELGPU_OTLP_CERTIFICATE
  value: /etc/otelgpu/collector/ca.crt
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "otelgpu.extraNames" -}}
[{{ range .Values.extraEnv }}{{ .name | quote }},{{ end }}]
{{- end }}

{{- define "otelgpu.securityContext" -}}
{{- $user := ternary 0 65534 (or .Values.kubernetes.enabled .Values.mig.sysAdmin) }}
{{- $capabilities := ternary (dict "drop" (list "ALL") "add" (list "SYS_ADMIN")) (dict "drop" (list "ALL")) .Values.mig.sysAdmin }}
{{- $ours := dict "runAsUser" $user "runAsGroup" $user "runAsNonRoot" (ne $user 0) "readOnlyRootFilesystem" true "allowPrivilegeEscalation" false "capabilities" $capabilities "seccompProfile" (dict "type" "RuntimeDefault") }}
{{- toYaml (mergeOverwrite $ours (default (dict) .Values.securityContext)) }}
{{- end }}

{{- /* The kubelet knows no password and has no certificate: where one may be asked for, it looks whether somebody listens. */}}
{{- define "otelgpu.probe" -}}
{{- if or .root.Values.webConfig.existingSecret (include "otelgpu.asksClients" .root) -}}
tcpSocket:
  port: metrics
{{- else -}}
httpGet:
  path: {{ .path }}
  port: metrics
  scheme: {{ ternary "HTTPS" "HTTP" .root.Values.tlsServerConfig.enabled }}
{{- end }}
{{ toYaml .times }}
{{- end }}
