resource "juju_application" "istio_aux" {
  name  = var.app_name
  model = var.model_name

  charm {
    name     = "istio-aux"
    base     = var.base
    channel  = var.channel
    revision = var.revision
  }

  config    = var.config
  resources = var.resources
  # The charm owns cluster-scoped objects: without trust it blocks and says so.
  trust = true
  units = var.units
}
