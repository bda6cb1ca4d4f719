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
  app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .root.Release.Service }}
  helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
  {{- with mergeOverwrite (dict) .root.Values.commonLabels .more }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "otelgpu.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
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
{{- $end := print ":" .Values.service.port }}
{{- if and .Values.service.address (not (hasSuffix $end .Values.service.address)) }}
{{- fail (printf "service.address: %s does not end in service.port, %s" .Values.service.address $end) }}
{{- end }}
{{- if regexMatch "^(127[.]|localhost:|.::1])" .Values.service.address }}
{{- fail (printf "service.address: neither the kubelet's probes nor Prometheus reach %s" .Values.service.address) }}
{{- end }}
{{- default $end .Values.service.address }}
{{- end }}

{{- define "otelgpu.securityContext" -}}
{{- $user := ternary 0 65534 (or .Values.kubernetes.enabled .Values.mig.monitor) }}
{{- $capabilities := ternary (dict "drop" (list "ALL") "add" (list "SYS_ADMIN")) (dict "drop" (list "ALL")) .Values.mig.monitor }}
{{- $ours := dict "runAsUser" $user "runAsGroup" $user "runAsNonRoot" (ne $user 0) "readOnlyRootFilesystem" true "allowPrivilegeEscalation" false "capabilities" $capabilities "seccompProfile" (dict "type" "RuntimeDefault") }}
{{- toYaml (mergeOverwrite $ours .Values.securityContext) }}
{{- end }}

{{- /* The kubelet knows no password and has no certificate: where one may be asked for, it looks whether somebody listens. */}}
{{- define "otelgpu.probe" -}}
{{- if or .root.Values.webConfig.existingSecret .root.Values.tlsServerConfig.clientAuthType -}}
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
