output "app_name" {
  description = "Name of the application in the model"
  value       = juju_application.istio_aux.name
}

output "provides" {
  description = "Endpoints that others can require"
  value = {
    grafana_dashboard = "grafana-dashboard"
    metrics_endpoint  = "metrics-endpoint"
    sidecar           = "sidecar"
  }
}

output "requires" {
  description = "Endpoints that require something of others"
  value = {
    certificates    = "certificates"
    charm_tracing   = "charm-tracing"
    istio_metadata  = "istio-metadata"
    istio_pilot     = "istio-pilot"
    logging         = "logging"
    receive_ca_cert = "receive-ca-cert"
    service_mesh    = "service-mesh"
  }
}
