"""``python -m medclip_debias`` is the console command."""

import sys

from medclip_debias.training.signals import listen_from_the_start


def main() -> None:
    """Run the command line; a run of ``train`` hears signals before its slow imports."""
    listen_from_the_start(sys.argv[1:])
    from medclip_debias.cli import main as command

    command()


if __name__ == "__main__":
    main()
