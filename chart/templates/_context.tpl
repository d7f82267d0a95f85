{{- /* Names, and what the templates that are made from the charm's take as `$c`. */}}

{{- define "istio-aux.names" -}}
{{- $name := .Values.nameOverride | default .Chart.Name }}
{{- $app := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) }}
{{- $app = .Values.fullnameOverride | default $app | trunc 63 | trimSuffix "-" }}
{{- $model := .Release.Namespace }}
{{- $pods := dict "app.kubernetes.io/name" $name "app.kubernetes.io/instance" .Release.Name }}
{{- $labels := dict
  "istio-aux.io/application" $app
  "istio-aux.io/model" $model
  "app.kubernetes.io/managed-by" .Release.Service
  "app.kubernetes.io/version" .Chart.AppVersion
  "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_")
}}
{{- dict
  "app" $app
  "certificate" (print $app "-certificate")
  "name" $name
  "model" $model
  "lease" $app
  "policy" (printf "istio-aux-%s.%s" $model $app)
  "role" (printf "%s.%s-workload" $model $app)
  "service_account" (.Values.serviceAccount.name | default (print $app "-workload"))
  "webhook_configuration" (printf "istio-aux-%s.%s" $model $app)
  "pods" $pods
  "labels" (merge $labels $pods .Values.commonLabels)
| toRawJson }}
{{- end }}

{{- /* Metadata of an object of the release's namespace: its name after `app` is `suffix`, and `labels` and `annotations` are its own. */}}
{{- define "istio-aux.metadata" -}}
{{- $c := include "istio-aux.names" .root | fromJson }}
{{- $metadata := dict "name" (print $c.app (.suffix | default "")) "namespace" $c.model "labels" (merge $c.labels (.labels | default dict)) }}
{{- with merge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
{{- $_ := set $metadata "annotations" . }}
{{- end }}
{{- toRawJson $metadata }}
{{- end }}

{{- /* Objects of a template that is made from the charm's, with the annotations that all objects have; takes the
template's name and the root. */}}
{{- define "istio-aux.annotated" -}}
{{- $text := include (index . 0) (index . 1) }}
{{- $common := (index . 1).Values.commonAnnotations }}
{{- if and $common (trim $text) }}
{{- range splitList "\n---\n" $text }}
{{- $object := fromYaml . }}
{{- $_ := set $object.metadata "annotations" (merge (dict) ($object.metadata.annotations | default dict) $common) }}
---
{{ toYaml $object }}
{{- end }}
{{- else }}
{{- $text }}
{{- end }}
{{- end }}

{{- define "istio-aux.context" -}}
{{- $v := .Values }}
{{- $s := $v.settings }}
{{- $names := include "istio-aux.names" . | fromJson }}
{{- $served := .Capabilities.APIVersions }}
{{- /* Without a cluster Helm knows a version, and no kinds. */}}
{{- $validates := or ($served.Has "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy") (semverCompare ">=1.30-0" .Capabilities.KubeVersion.Version) }}

{{- $text := .Files.Get "files/rules.json" }}
{{- $allowed := get (fromJson $text) "namespaces" }}
{{- $namespaces := list }}
{{- range index $s "namespace-selectors" | default (list dict) }}
{{- $namespaces = append $namespaces (include "istio-aux.requirements" . | fromJsonArray) }}
{{- if gt (len (include "istio-aux.selector" .)) (int $allowed.longest) }}
{{- fail (printf "settings.namespace-selectors: %s: expected a shorter selector" (toRawJson . | trunc 60)) }}
{{- end }}
{{- end }}
{{- $pods := include "istio-aux.requirements" (index $s "pod-selector") | fromJsonArray }}
{{- $rules := $text
  | replace "@APP@" $names.name
  | replace "\"@PODS@\"," (include "istio-aux.items" $pods)
  | replace "\"@INJECTED@\"" (include "istio-aux.items" ($v.injectNamespaces | uniq | sortAlpha) | trimSuffix ",")
  | fromJson }}

{{- /* Applications by namespace. */}}
{{- $asked := dict }}
{{- range $entry := $v.injectApplications }}
{{- $both := splitList "/" $entry }}
{{- $where := index $both 0 }}
{{- if has $where $rules.constants.never_injected }}
{{- fail (printf "injectApplications: %s: expected a namespace that Istio does not ignore" $entry) }}
{{- end }}
{{- $_ := set $asked $where (append (get $asked $where | default list) (index $both 1) | uniq | sortAlpha) }}
{{- end }}
{{- $injected := dict }}
{{- range $where, $applications := $asked }}
{{- $_ := set $injected $where (ternary (list "*") $applications (has "*" $applications)) }}
{{- end }}
{{- range $where := $v.injectNamespaces }}
{{- if has $where $rules.constants.never_injected }}
{{- fail (printf "injectNamespaces: %s: expected a namespace that Istio does not ignore" $where) }}
{{- end }}
{{- $_ := set $injected $where (list "*") }}
{{- end }}

{{- $webhooks := list }}
{{- $selected := list }}
{{- range $index, $requirements := $namespaces }}
{{- $own := first $rules.webhooks | toRawJson | replace "\"@NAMESPACES@\"," (include "istio-aux.items" $requirements) | fromJson }}
{{- $number := ternary "" (toString (add1 $index)) (eq $index 0) }}
{{- $name := printf "%s.%s" $number $own.name | trimPrefix "." }}
{{- $webhooks = append $webhooks (merge (dict "name" $name) $own) }}
{{- $selected = append $selected (printf "(%s)" (include "istio-aux.cel" (list (concat $requirements $allowed.never) "variables.labels"))) }}
{{- end }}
{{- if $v.injectNamespaces }}
{{- $webhooks = append $webhooks (last $rules.webhooks) }}
{{- end }}
{{- range $where, $applications := $asked }}
{{- $ours := eq $where $names.model }}
{{- $way := "named" }}
{{- if has "*" $applications }}
{{- $way = ternary "every of ours" "every" $ours }}
{{- else if $ours }}
{{- $applications = without $applications $names.name }}
{{- end }}
{{- if $applications }}
{{- $webhook := get $rules.inject $way | toRawJson | replace "@MODEL@" $where | replace "\"@NAMES@\"" (include "istio-aux.items" $applications | trimSuffix ",") | fromJson }}
{{- $webhooks = append $webhooks $webhook }}
{{- end }}
{{- end }}

{{- range $webhook := $webhooks }}
{{- $_ := set $webhook "matches" (include "istio-aux.matches" (list $webhook.matches $v.webhook) | fromJsonArray) }}
{{- end }}

{{- /* The default revision has no suffix. */}}
{{- $maps := list "istio-cni-config" "istio-sidecar-injector" }}
{{- $configurations := lookup "admissionregistration.k8s.io/v1" "MutatingWebhookConfiguration" "" "" }}
{{- $revisions := $v.istioRevisions }}
{{- range $configurations.items }}
{{- $revisions = append $revisions (get (.metadata.labels | default dict) "istio.io/rev") }}
{{- end }}
{{- range $revision := without $revisions "" "default" }}
{{- $maps = append $maps (print "istio-sidecar-injector-" $revision) }}
{{- end }}

{{- $published := omit (include "istio-aux.settings" . | fromJson) "log-level" | toRawJson }}
{{- $acts := eq $s.quit "enabled" }}
{{- $own := dict
  "acts" $acts
  "chosen" (include "istio-aux.cel" (list $pods "variables.podLabels"))
  "config_maps" ($maps | uniq | sortAlpha)
  "deletes" (and $acts (eq (index $s "dead-proxy") "delete"))
  "dry_runs" $validates
  "injected" (toRawJson $injected)
  "namespaces" $namespaces
 "repairs" (eq (index $s "race-policy") "restart")
 "selected" (join " || " $selected)
  "settings" (ternary $published "" (le (len $published) (int $rules.constants.longest_settings)))
  "user" (printf "system:serviceaccount:%s:%s" $names.model $names.service_account)
  "validates" $validates
  "webhook_timeout" $v.webhook.timeoutSeconds
  "webhooks" $webhooks
}}
{{- $certificate := include "istio-aux.certificate" . | fromJson }}
{{- merge $certificate $own $names $rules.constants | toRawJson }}
{{- end }}
