{{- /* Label selectors of values: as requirements, as kubectl has them, and as CEL. */}}

{{- /* A label selector as a JSON list of matchExpressions. */}}
{{- define "istio-aux.requirements" -}}
{{- $found := list }}
{{- range $key, $value := .matchLabels }}
{{- $found = append $found (dict "key" $key "operator" "In" "values" (list $value)) }}
{{- end }}
{{- range .matchExpressions }}
{{- $found = append $found . }}
{{- end }}
{{- toRawJson $found }}
{{- end }}

{{- /* A label selector as kubectl has it, which the workload reads. */}}
{{- define "istio-aux.selector" -}}
{{- $terms := list }}
{{- range include "istio-aux.requirements" . | fromJsonArray }}
{{- if not .values }}
{{- $terms = append $terms (print (ternary "!" "" (eq .operator "DoesNotExist")) .key) }}
{{- else if eq (len .values) 1 }}
{{- $terms = append $terms (print .key (ternary "=" "!=" (eq .operator "In")) (first .values)) }}
{{- else }}
{{- $terms = append $terms (printf "%s %s (%s)" .key (lower .operator) (join "," .values)) }}
{{- end }}
{{- end }}
{{- join "," $terms }}
{{- end }}

{{- /* Requirements as CEL; takes them, and CEL for a map of labels. */}}
{{- define "istio-aux.cel" -}}
{{- $labels := index . 1 }}
{{- $terms := list }}
{{- range $one := index . 0 }}
{{- $key := quote $one.key }}
{{- $values := list }}
{{- range $one.values }}
{{- $values = append $values (quote .) }}
{{- end }}
{{- $in := printf "%s in %s && %s[%s] in [%s]" $key $labels $labels $key (join ", " $values) }}
{{- if eq $one.operator "In" }}
{{- $terms = append $terms $in }}
{{- else if eq $one.operator "NotIn" }}
{{- $terms = append $terms (printf "!(%s)" $in) }}
{{- else if eq $one.operator "Exists" }}
{{- $terms = append $terms (printf "%s in %s" $key $labels) }}
{{- else }}
{{- $terms = append $terms (printf "!(%s in %s)" $key $labels) }}
{{- end }}
{{- end }}
{{- join " && " $terms | default "true" }}
{{- end }}

{{- /* A JSON list without its brackets, with a comma behind it unless it is empty. */}}
{{- define "istio-aux.items" -}}
{{- $inner := toRawJson . | trimPrefix "[" | trimSuffix "]" }}
{{- if $inner }}{{ $inner }},{{ end }}
{{- end }}

{{- /* A selector AND another one, both as the API has them. */}}
{{- define "istio-aux.narrowed" -}}
{{- $selector := index . 0 }}
{{- $more := include "istio-aux.requirements" (index . 1) | fromJsonArray }}
{{- if $more }}
{{- $_ := set $selector "matchExpressions" (concat ($selector.matchExpressions | default list) $more) }}
{{- end }}
{{- toRawJson $selector }}
{{- end }}

{{- /* Pairs of a webhook's fields and values, AND the selectors of the value `webhook`; takes both. */}}
{{- define "istio-aux.matches" -}}
{{- $webhook := index . 1 }}
{{- $pairs := list }}
{{- range index . 0 }}
{{- $field := index . 0 }}
{{- $value := index . 1 }}
{{- if hasKey $webhook $field }}
{{- $value = include "istio-aux.narrowed" (list $value (get $webhook $field)) | fromJson }}
{{- end }}
{{- $pairs = append $pairs (list $field $value) }}
{{- end }}
{{- toRawJson $pairs }}
{{- end }}
