"""A service over HTTP: what is asked, by whom, and how it is answered. docs/reference/service_api.md is for its users."""
