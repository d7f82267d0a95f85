{{- /*
What the API server trusts: `ca_bundle`, or `ca_from`, from which cert-manager writes it; and the name of the Secret.

Helm makes an authority whose key it forgets, and one certificate. An upgrade keeps them, unless they are old: then it makes
others, and the API server trusts both authorities, because a pod sees a changed Secret a minute later.
*/}}
{{- define "istio-aux.certificate" -}}
{{- $c := include "istio-aux.names" . | fromJson }}
{{- $name := $c.certificate }}
{{- if eq .Values.certificates.from "cert-manager" }}
{{- dict "ca_bundle" "" "ca_from" (printf "%s/%s" .Release.Namespace $name) "certificate" $name | toRawJson }}
{{- else }}
{{- /* Made once for all templates of a run. */}}
{{- if not (hasKey .Values "made") }}
{{- $present := lookup "v1" "Secret" .Release.Namespace $name }}
{{- $now := now | unixEpoch | int64 }}
{{- $since := get (dig "metadata" "annotations" (dict) $present) "istio-aux.io/made" | default $now | int64 }}
{{- $kept := min (mul 86400 .Values.certificates.renewAfterDays) (mul 43200 .Values.certificates.days) }}
{{- if and $present (le (sub $now $since) $kept) }}
{{- $_ := set .Values "made" (dict "data" $present.data "since" $since) }}
{{- else }}
{{- $host := printf "%s.%s.svc" $c.app $c.model }}
{{- $days := int .Values.certificates.days }}
{{- $authority := genCA (printf "%s in %s" $c.app $c.model | trunc 64) $days }}
{{- $leaf := genSignedCert "" nil (list $host) $days $authority }}
{{- $before := dig "data" "ca.crt" "" $present | b64dec }}
{{- $end := "-----END CERTIFICATE-----\n" }}
{{- $last := ternary (print (splitList $end $before | first) $end) "" (not (empty $before)) }}
{{- $data := dict "ca.crt" (print $authority.Cert $last | b64enc) "tls.crt" (b64enc $leaf.Cert) "tls.key" (b64enc $leaf.Key) }}
{{- $_ := set .Values "made" (dict "data" $data "since" $now) }}
{{- end }}
{{- end }}
{{- $made := get .Values "made" }}
{{- dict "ca_bundle" (get $made.data "ca.crt") "ca_from" "" "certificate" $name | toRawJson }}
{{- end }}
{{- end }}
