"""`python -m pdvae_cli` is `pdvae`; so `torchrun -m pdvae_cli` starts it in several processes."""

from .start import main

if __name__ == "__main__":
    main()
