module "istio_aux" {
  source     = "../provider-1"
  model_uuid = var.model_uuid
  app_name   = var.istio_aux.app_name
  channel    = var.istio_aux.channel
  config     = var.istio_aux.config
  resources  = var.istio_aux.resources
  revision   = var.istio_aux.revision
  units      = var.istio_aux.units
}

locals {
  # Endpoints of istio-aux, and what is on the other side: an application of the model, or an offer.
  applications = {
    istio_pilot    = { name = var.istio.pilot, endpoint = "istio-pilot" }
    istio_metadata = { name = var.istio.metadata, endpoint = "istio-metadata" }
    service_mesh   = { name = var.istio.beacon, endpoint = "service-mesh" }
    certificates   = { name = var.certificates, endpoint = "certificates" }
  }
  offers = {
    charm_tracing     = var.cos.charm_tracing
    grafana_dashboard = var.cos.grafana_dashboard
    logging           = var.cos.logging
    metrics_endpoint  = var.cos.metrics_endpoint
    receive_ca_cert   = var.cos.receive_ca_cert
  }
  endpoints = merge(module.istio_aux.provides, module.istio_aux.requires)
}

resource "juju_integration" "application" {
  for_each   = { for key, other in local.applications : key => other if other.name != null }
  model_uuid = var.model_uuid

  application {
    name     = module.istio_aux.app_name
    endpoint = local.endpoints[each.key]
  }
  application {
    name     = each.value.name
    endpoint = each.value.endpoint
  }
}

resource "juju_integration" "offer" {
  for_each   = { for key, url in local.offers : key => url if url != null }
  model_uuid = var.model_uuid

  application {
    name     = module.istio_aux.app_name
    endpoint = local.endpoints[each.key]
  }
  application {
    offer_url = each.value
  }
}
