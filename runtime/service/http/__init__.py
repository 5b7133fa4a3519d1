"""The HTTP API of a service. docs/reference/service_api.md describes it for users."""
