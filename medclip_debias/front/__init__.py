"""The front door: what `import medclip_debias` offers, imported when it is first asked for."""
