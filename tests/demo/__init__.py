"""The main job, watched: a TFJob that hangs beside Istio's sidecar, then completes."""
