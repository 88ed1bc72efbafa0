"""The command line `pdvae`, installed as `pdvae_cli`."""
