"""Gradient estimators of the ELBO. Each file holds one family."""
