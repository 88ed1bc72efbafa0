"""What a model is trained on, made of stored rows: values for its likelihood, parts, batches."""
