"""ELBOs: one file a family of gradient estimators."""
