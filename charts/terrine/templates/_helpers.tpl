{{- define "terrine.name" -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- /* What a part's pods are found by. Call with (dict "root" $ "part" "server"). */ -}}
{{- define "terrine.selector" -}}
app.kubernetes.io/name: terrine
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "terrine.labels" -}}
{{ include "terrine.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{- define "terrine.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- /* Call with (dict "root" $ "role" "terrine"). */ -}}
{{- define "terrine.url" -}}
{{- $db := .root.Values.database -}}
{{- $host := ternary (printf "%s-db" (include "terrine.name" .root)) $db.host $db.bundled -}}
postgresql+psycopg://{{ .role }}@{{ $host }}:{{ $db.port }}/{{ $db.name }}{{ with $db.options }}?{{ . }}{{ end }}
{{- end }}

{{- /* Of a pod; call with the account's number. */ -}}
{{- define "terrine.podSecurity" -}}
automountServiceAccountToken: false
enableServiceLinks: false {{- /* a service named terrine would set TERRINE_PORT */}}
securityContext:
  runAsNonRoot: true
  runAsUser: {{ . }}
  runAsGroup: {{ . }}
  fsGroup: {{ . }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "terrine.containerSecurity" -}}
securityContext:
  readOnlyRootFilesystem: true
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "terrine.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}
