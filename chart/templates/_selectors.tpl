{{- /* kubectl's label selectors, which Helm cannot read: as the API has them, and as CEL. */}}

{{- /* A selector as a JSON list of matchExpressions; takes the setting's name and its text. */}}
{{- define "istio-aux.requirements" -}}
{{- $setting := index . 0 }}
{{- $text := index . 1 | trim }}
{{- $name := `[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?` }}
{{- $part := `[a-z0-9](?:[-a-z0-9]*[a-z0-9])?` }}
{{- $key := printf `(?:%s(?:\.%s)*/)?%s` $part $part $name }}
{{- $value := printf `(?:%s)?` $name }}
{{- $set := printf `\s+(?:in|notin)\s*\(\s*%s\s*(?:,\s*%s\s*)*\)` $value $value }}
{{- $one := printf `\s*(?:!\s*%s|%s(?:\s*(?:==?|!=)\s*%s|%s)?)\s*` $key $key $value $set }}
{{- $wrong := or (regexMatch `\(\s*\)` $text) (not (regexMatch (printf `^%s(?:,%s)*$` $one $one) $text)) }}
{{- range regexFindAll `[^\s!,/]*/` $text -1 }}
{{- $wrong = or $wrong (gt (len .) 254) }}
{{- end }}
{{- if and $text $wrong }}
{{- fail (printf "settings.%s: %s: expected comma-separated requirements such as key, !key, key=value, key!=value, key in (a,b), key notin (a,b)" $setting ($text | quote)) }}
{{- end }}
{{- $found := list }}
{{- range $term := regexFindAll `(?:[^,(]|\([^)]*\))+` $text -1 }}
{{- $term = trim $term }}
{{- if hasPrefix "!" $term }}
{{- $found = append $found (dict "key" (trimPrefix "!" $term | trim) "operator" "DoesNotExist") }}
{{- else if contains "(" $term }}
{{- $both := splitList "(" $term }}
{{- $words := regexSplit `\s+` (index $both 0 | trim) -1 }}
{{- $values := list }}
{{- range splitList "," (index $both 1 | trimSuffix ")") }}
{{- $values = append $values (trim .) }}
{{- end }}
{{- $operator := ternary "In" "NotIn" (eq (index $words 1) "in") }}
{{- $found = append $found (dict "key" (index $words 0) "operator" $operator "values" ($values | uniq | sortAlpha)) }}
{{- else if contains "=" $term }}
{{- $operator := ternary "NotIn" "In" (contains "!=" $term) }}
{{- $both := regexSplit `\s*(?:!=|==?)\s*` $term 2 }}
{{- $found = append $found (dict "key" (index $both 0) "operator" $operator "values" (list (index $both 1))) }}
{{- else }}
{{- $found = append $found (dict "key" $term "operator" "Exists") }}
{{- end }}
{{- end }}
{{- toRawJson $found }}
{{- end }}

{{- /* `namespace-selectors` as a JSON list of such lists; takes what is allowed, and the text. */}}
{{- define "istio-aux.namespaces" -}}
{{- $allowed := index . 0 }}
{{- $text := index . 1 }}
{{- $parts := list }}
{{- range splitList ";" $text }}
{{- $parts = append $parts (trim .) }}
{{- if gt (len (trim .)) (int $allowed.longest) }}
{{- fail (printf "settings.namespace-selectors: %s: expected %v characters at most" (trim . | trunc 60 | quote) $allowed.longest) }}
{{- end }}
{{- end }}
{{- if gt (len $parts) (int $allowed.most) }}
{{- fail (printf "settings.namespace-selectors: %s: expected %v selectors at most" ($text | trunc 60 | quote) $allowed.most) }}
{{- end }}
{{- if and (trim $text) (has "" $parts) }}
{{- fail (printf "settings.namespace-selectors: %s: expected a selector on both sides of each \";\"" ($text | trunc 60 | quote)) }}
{{- end }}
{{- $found := list }}
{{- range $parts | uniq | sortAlpha }}
{{- $found = append $found (include "istio-aux.requirements" (list "namespace-selectors" .) | fromJsonArray) }}
{{- end }}
{{- toRawJson $found }}
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
{{- $more := list }}
{{- range $key, $value := (index . 1).matchLabels }}
{{- $more = append $more (dict "key" $key "operator" "In" "values" (list $value)) }}
{{- end }}
{{- $more = concat $more ((index . 1).matchExpressions | default list) }}
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
