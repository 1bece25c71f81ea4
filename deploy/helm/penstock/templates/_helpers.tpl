{{/*
What everything of a release is called: 35 characters at most, so that all that is put behind it fits, up to the names
of pods, and no dots nor a digit at its beginning, as Services have neither. A name that is changed for that is told from
others by a part of its hash.
*/}}
{{- define "penstock.fullname" -}}
{{- $whole := ternary .Release.Name (printf "%s-penstock" .Release.Name) (contains "penstock" .Release.Name) -}}
{{- $name := regexReplaceAll "^([0-9])" ($whole | replace "." "-") "r$1" -}}
{{- if or (gt (len $name) 35) (ne $name $whole) -}}
{{- printf "%s-%s" ($name | trunc 26 | trimSuffix "-") (sha256sum $whole | trunc 8) -}}
{{- else -}}
{{- $name -}}
{{- end -}}
{{- end -}}

{{- define "penstock.selector" -}}
app.kubernetes.io/name: penstock
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "penstock.labels" -}}
{{ include "penstock.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 }}
{{- end -}}

{{/* Without versions: where these change alone, no pod has to be replaced. */}}
{{- define "penstock.podLabels" -}}
{{ include "penstock.selector" . }}
{{- range $name, $value := .root.Values.podLabels }}
{{- if or (hasPrefix "app.kubernetes.io/" $name) (hasPrefix "penstock.io/" $name) }}{{ fail (printf "podLabels: %s is the chart's own" $name) }}{{ end }}
{{ $name }}: {{ $value | quote }}
{{- end }}
{{- end -}}

{{/* Annotations of a pod, if it has any: those of the values, and further ones. */}}
{{- define "penstock.podAnnotations" -}}
{{- with merge dict (.further | default dict) .root.Values.podAnnotations }}
annotations:
  {{- range $name, $value := . }}
  {{ $name }}: {{ $value | quote }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "penstock.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{/* Where the NATS server is. */}}
{{- define "penstock.scheme" -}}
{{ ternary "nats" "tls" (eq .Values.nats.tls.mode "none") }}
{{- end -}}

{{- define "penstock.natsHost" -}}
{{ include "penstock.fullname" . }}-nats.{{ .Release.Namespace }}.svc
{{- end -}}

{{- define "penstock.url" -}}
{{- if .Values.nats.enabled -}}
{{ include "penstock.scheme" . }}://{{ include "penstock.natsHost" . }}:4222
{{- else -}}
{{ required "external.url says where the NATS server is, as nats.enabled is false" .Values.external.url }}
{{- end -}}
{{- end -}}

{{/* The port of a server elsewhere. */}}
{{- define "penstock.externalPort" -}}
{{ include "penstock.url" . | regexFind ":[0-9]+$" | trimPrefix ":" | default "4222" }}
{{- end -}}

{{/* Of where the server is and by which authority it is checked, as services read that in their logins when they start. */}}
{{- define "penstock.serverChecksum" -}}
{{ printf "%s %s" (include "penstock.url" .) (toYaml .Values.nats.tls) | sha256sum | trunc 16 }}
{{- end -}}

{{/* The logins for which a Secret is made: those of libs/penstock_log/services.py, and of people and extensions. */}}
{{- define "penstock.roles" -}}
admin gateway profiler ranker autoscaler matcher tuner executor memory assigner aggregator allocator dashboard shadow client extension
{{- range .Values.extensions }} extension-{{ . }}{{ end -}}
{{- end -}}

{{- define "penstock.keysSecret" -}}
{{ .Values.nats.existingSecret | default (printf "%s-keys" (include "penstock.fullname" .)) }}
{{- end -}}

{{/* Whether the chart makes keys and logins itself. */}}
{{- define "penstock.makesKeys" -}}
{{- if .Values.nats.enabled -}}
{{- if and .Values.nats.existingSecret (not .Values.logins.existingSecret) }}{{ fail "nats.existingSecret has the keys, and logins.existingSecret has to have the logins that were made by them" }}{{ end -}}
{{- if and .Values.logins.existingSecret (not .Values.nats.existingSecret) }}{{ fail "logins.existingSecret has the logins, and nats.existingSecret has to have the keys by which they were made; without either a job makes both" }}{{ end -}}
{{- end -}}
{{- if and .Values.nats.enabled (not .Values.logins.existingSecret) -}}
true
{{- end -}}
{{- end -}}

{{/* Where pilots are started as Pods, and whether their namespace is the release's own. */}}
{{- define "penstock.pilotsNamespace" -}}
{{ required "pilots.namespace names the namespace of the Pods that the allocator makes: one of their own, as whoever may make Pods in the release's namespace can read its keys" .Values.pilots.namespace }}
{{- end -}}

{{- define "penstock.pilotsAreHere" -}}
{{- if eq (include "penstock.pilotsNamespace" .) .Release.Namespace }}true{{ end -}}
{{- end -}}

{{/* Pods of pilots as a peer in a policy of the release's namespace. */}}
{{- define "penstock.pilotsPeer" -}}
- podSelector:
    matchExpressions:
      - { key: penstock.dev/allocation, operator: Exists }
  {{- if not (include "penstock.pilotsAreHere" .) }}
  namespaceSelector:
    matchLabels:
      kubernetes.io/metadata.name: {{ include "penstock.pilotsNamespace" . }}
  {{- end }}
{{- end -}}

{{/* A component of the release as a peer in a policy of the pilots' namespace. */}}
{{- define "penstock.peerOfPilots" -}}
- podSelector:
    matchLabels:
      {{- include "penstock.selector" . | nindent 6 }}
  {{- if not (include "penstock.pilotsAreHere" .root) }}
  namespaceSelector:
    matchLabels:
      kubernetes.io/metadata.name: {{ .root.Release.Namespace }}
  {{- end }}
{{- end -}}

{{/* A volume with the login of one role alone, and its mount. */}}
{{- define "penstock.loginFile" -}}
{{ .root.Values.logins.sharedFile | default (printf "%s.json" .role) }}
{{- end -}}

{{- define "penstock.loginVolume" -}}
- name: login-{{ .role }}
  secret:
    secretName: {{ .root.Values.logins.existingSecret | default (printf "%s-login-%s" (include "penstock.fullname" .root) .role) }}
    defaultMode: 0440
    items:
      - key: {{ include "penstock.loginFile" . }}
        path: {{ .role }}.json
{{- end -}}

{{- define "penstock.loginMount" -}}
- name: login-{{ .role }}
  mountPath: /auth/{{ .role }}
  readOnly: true
{{- end -}}

{{/* What Pod Security Standards call restricted. */}}
{{- define "penstock.podSecurity" -}}
runAsNonRoot: true
{{- if not .Values.clusterChoosesUser }}
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
{{- end }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "penstock.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/*
What all pods have. Links of services are off: a service that is called penstock-nats would put PENSTOCK_NATS_PORT and
the like into the environment, and Penstock refuses settings that it does not know.
*/}}
{{- define "penstock.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  {{- include "penstock.podSecurity" . | nindent 2 }}
{{- end -}}

{{/* The same with a token of the API server, for the rights of the pod's service account. */}}
{{- define "penstock.podWithToken" -}}
{{- include "penstock.pod" . | replace "automountServiceAccountToken: false" "automountServiceAccountToken: true" -}}
{{- end -}}

{{- define "penstock.image.of" -}}
image: {{ include "penstock.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  {{- include "penstock.containerSecurity" . | nindent 2 }}
{{- end -}}

{{/*
An environment with each variable once, as it comes last, where it comes first: a list with a name twice is refused by a
server-side apply.
*/}}
{{- define "penstock.merged" -}}
{{- $names := list -}}
{{- $last := dict -}}
{{- range fromYamlArray . -}}
{{- if not (hasKey $last .name) }}{{ $names = append $names .name }}{{ end -}}
{{- $_ := set $last .name . -}}
{{- end -}}
{{- range $names }}
{{ toYaml (list (get $last .)) }}
{{- end -}}
{{- end -}}

{{/* The environment of all services and executors. */}}
{{- define "penstock.env" -}}
- name: PENSTOCK_URL
  value: {{ include "penstock.url" . | quote }}
- name: PENSTOCK_LOG_FORMAT
  value: json
- name: PENSTOCK_READY_FILE
  value: /tmp/penstock-ready
- name: PENSTOCK_LIVE_FILE
  value: /tmp/penstock-live
{{- if .Values.config }}
- name: PENSTOCK_CONFIG
  value: /etc/penstock/penstock.toml
{{- end }}
{{- with .Values.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "penstock.configVolume" -}}
{{- if .Values.config }}
- name: config
  configMap:
    name: {{ include "penstock.fullname" . }}-config
{{- end }}
{{- end -}}

{{- define "penstock.configMount" -}}
{{- if .Values.config }}
- name: config
  mountPath: /etc/penstock
  readOnly: true
{{- end }}
{{- end -}}

{{/* A service touches these files every second: once it is ready and hears itself over the bus, and while it lives. */}}
{{- define "penstock.fresh" -}}
exec:
  command: [sh, -c, test -n "$(find {{ .file }} -newermt '-{{ .age }} seconds')"]
timeoutSeconds: 8
{{- end -}}

{{- define "penstock.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "penstock.selector" . | nindent 8 }}
{{- end -}}
