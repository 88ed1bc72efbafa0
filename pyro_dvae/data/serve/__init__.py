"""From rows as stored to what a model is trained on: values, parts, batches."""
