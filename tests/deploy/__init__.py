"""What the tests of deploy/ need: renderers that stand in for kustomize and helm, and checks of what comes out."""
