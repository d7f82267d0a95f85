output "app_name" {
  description = "Name of the application in the model"
  value       = module.istio_aux.app_name
}
