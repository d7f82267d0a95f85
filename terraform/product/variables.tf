variable "model_uuid" {
  description = "UUID of the model of the mesh's applications, where istio-aux is deployed as well"
  type        = string
}

variable "istio_aux" {
  description = "What the module provider-1 takes"
  type = object({
    app_name  = optional(string, "istio-aux")
    channel   = optional(string, "latest/edge")
    config    = optional(map(string), {})
    resources = optional(map(string))
    revision  = optional(number)
    units     = optional(number, 2)
  })
  default = {}
}

variable "istio" {
  description = "Applications of Istio: pilot in sidecar mode (istio-pilot), metadata (istio-k8s) and beacon (istio-beacon-k8s) in ambient mode"
  type = object({
    pilot    = optional(string)
    metadata = optional(string)
    beacon   = optional(string)
  })

  validation {
    condition     = (var.istio.pilot == null) != (var.istio.metadata == null)
    error_message = "istio: either pilot or metadata"
  }
}

variable "certificates" {
  description = "Application that issues certificates; without one the charm has an authority of its own"
  type        = string
  default     = null
}

variable "cos" {
  description = "URLs of the offers of the observability stack, such as admin/cos.loki-logging; those that are not set are left out"
  type = object({
    charm_tracing     = optional(string)
    grafana_dashboard = optional(string)
    logging           = optional(string)
    metrics_endpoint  = optional(string)
    receive_ca_cert   = optional(string)
  })
  default = {}
}
