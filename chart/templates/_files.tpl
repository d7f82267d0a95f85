{{- /* The settings that all pods have, with the content of the file of applications, as JSON. */}}
{{- define "istio-aux.settings" -}}
{{- $c := include "istio-aux.names" . | fromJson }}
{{- $settings := dict
  "application" (printf "%s/%s" $c.model $c.name)
  "lease" (printf "%s/%s" $c.model $c.lease)
  "webhook-configuration" $c.webhook_configuration
}}
{{- range $name, $value := .Values.settings }}
{{- if has $name (list "pod-selector" "inject-selector") }}
{{- $value = include "istio-aux.selector" $value }}
{{- else if eq $name "namespace-selectors" }}
{{- $selectors := list }}
{{- range $value }}
{{- $selectors = append $selectors (include "istio-aux.selector" .) }}
{{- end }}
{{- $value = join ";" $selectors }}
{{- end }}
{{- if not (and (eq $name "root-namespace") (empty $value)) }}
{{- $_ := set $settings $name $value }}
{{- end }}
{{- end }}
{{- $lines := list "# Applications whose pods get a sidecar: namespace/application." }}
{{- $lines = concat $lines (.Values.injectApplications | uniq | sortAlpha) }}
{{- range .Values.injectNamespaces | uniq | sortAlpha }}
{{- $lines = append $lines (print . "/**") }}
{{- end }}
{{- set $settings "applications" (print (join "\n" $lines) "\n") | toRawJson }}
{{- end }}

{{- /* The workload's files, by name, as JSON. */}}
{{- define "istio-aux.files" -}}
{{- $settings := include "istio-aux.settings" . | fromJson }}
{{- $local := dict
  "webhook-address" (printf ":%v" .Values.webhook.securePort)
  "status-address" (printf ":%v" .Values.statusPort)
  "applications" "/etc/istio-aux/settings/applications"
  "tls-certificate" "/etc/istio-aux/tls/tls.crt"
  "tls-key" "/etc/istio-aux/tls/tls.key"
}}
{{- dict "config.yaml" (merge $local $settings | toYaml) "applications" $settings.applications | toRawJson }}
{{- end }}
