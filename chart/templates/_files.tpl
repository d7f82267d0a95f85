{{- /* The workload's files, by name, as JSON. */}}
{{- define "istio-aux.files" -}}
{{- $c := include "istio-aux.context" . | fromJson }}
{{- $settings := dict
  "application" (printf "%s/%s" $c.model $c.name)
  "applications" "/etc/istio-aux/settings/applications"
  "lease" (printf "%s/%s" $c.model $c.lease)
  "tls-certificate" "/etc/istio-aux/tls/tls.crt"
  "tls-key" "/etc/istio-aux/tls/tls.key"
  "webhook-configuration" $c.webhook_configuration
  "webhook-address" (printf ":%v" .Values.webhook.securePort)
  "status-address" (printf ":%v" .Values.statusPort)
}}
{{- range $name, $value := .Values.settings }}
{{- if not (and (eq $name "root-namespace") (empty $value)) }}
{{- $_ := set $settings $name $value }}
{{- end }}
{{- end }}
{{- $lines := list "# Applications whose pods get a sidecar: namespace/application." }}
{{- $lines = concat $lines (.Values.injectApplications | uniq | sortAlpha) }}
{{- range .Values.injectNamespaces | uniq | sortAlpha }}
{{- $lines = append $lines (print . "/**") }}
{{- end }}
{{- dict "config.yaml" (toYaml $settings) "applications" (print (join "\n" $lines) "\n") | toRawJson }}
{{- end }}
