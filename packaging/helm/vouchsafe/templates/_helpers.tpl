{{- define "vouchsafe.labels" -}}
app.kubernetes.io/name: vouchsafe
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .role }}
{{- end }}

{{- define "vouchsafe.pod" -}}
# The node's own network is what is protected, and what packets leave by.
hostNetwork: true
dnsPolicy: ClusterFirstWithHostNet
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: 10
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "vouchsafe.image" -}}
image: {{ printf "%s:%s" .Values.image.repository .Values.image.tag | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{- /* Settings as variables: VOUCHSAFE_INTERFACE for the verifier's, VOUCHSAFE_AGENT_INTERFACE for the agent's. */}}
{{- define "vouchsafe.settings" -}}
{{- range $name, $value := .settings }}
- name: {{ printf "%s%s" $.prefix (upper $name) }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}
