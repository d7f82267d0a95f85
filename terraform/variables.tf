variable "app_name" {
  description = "Name of the application in the model"
  type        = string
  default     = "istio-aux"
}

variable "base" {
  description = "Base on which the charm runs"
  type        = string
  default     = "ubuntu@24.04"
}

variable "channel" {
  description = "Channel of the charm"
  type        = string
  default     = "latest/edge"
}

variable "config" {
  description = "Options of the charm, as in config.yaml"
  type        = map(string)
  default     = {}
}

variable "model_name" {
  description = "Model to deploy to"
  type        = string
}

variable "resources" {
  description = "Resources of the charm: istio-aux-image, an OCI image or a revision of it"
  type        = map(string)
  default     = null
}

variable "revision" {
  description = "Revision of the charm, the newest of the channel when not set"
  type        = number
  default     = null
}

variable "units" {
  description = "Number of units; every one of them serves the webhook"
  type        = number
  default     = 2

  validation {
    condition     = var.units >= 0 && floor(var.units) == var.units
    error_message = "units: a whole number, 0 or more"
  }
}
