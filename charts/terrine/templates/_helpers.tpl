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

{{- /* Of a pod: where it may run. */ -}}
{{- define "terrine.nodes" -}}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* The variables that say where others reach the server, and of an issuer, if there is one. */ -}}
{{- define "terrine.issuer" -}}
{{- $ingress := ternary (printf "https://%s%s" .Values.ingress.host .Values.pathPrefix) "" (ne .Values.ingress.host "") }}
{{- $url := .Values.oidc.publicUrl | default $ingress }}
{{- if and $url (not (hasKey .Values.settings "TERRINE_PUBLIC_URL")) }}
- {name: TERRINE_PUBLIC_URL, value: {{ $url | quote }}}
{{- end }}
{{- with .Values.oidc }}
{{- if .issuer }}
- {name: TERRINE_OIDC_ISSUER, value: {{ .issuer | quote }}}
- {name: TERRINE_OIDC_CLIENT_ID, value: {{ .clientId | quote }}}
{{- if .clientSecretKey }}
- {name: TERRINE_OIDC_CLIENT_SECRET_FILE, value: /run/secrets/{{ .clientSecretKey }}}
{{- end }}
{{- if not $url }}
{{- fail "oidc.publicUrl is needed: the issuer sends browsers back there, and no ingress.host says where that is." }}
{{- end }}
{{- if .scopes }}
- {name: TERRINE_OIDC_SCOPES, value: {{ .scopes | quote }}}
{{- end }}
{{- if .roleClaim }}
- {name: TERRINE_OIDC_ROLE_CLAIM, value: {{ .roleClaim | quote }}}
{{- end }}
{{- if .admins }}
- {name: TERRINE_OIDC_ADMINS, value: {{ .admins | toJson | quote }}}
{{- end }}
{{- if .auditors }}
- {name: TERRINE_OIDC_AUDITORS, value: {{ .auditors | toJson | quote }}}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
