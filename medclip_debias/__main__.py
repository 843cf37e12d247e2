"""``python -m medclip_debias`` is the console command."""

from medclip_debias.cli import main

main()
