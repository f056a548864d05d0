"""The spec language: YAML in, a frozen `Spec` out."""
