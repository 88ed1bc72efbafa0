"""What data hold, and which likelihoods take them."""
