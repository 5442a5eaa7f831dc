"""`python -m dflash_convert` = `dflash-convert`."""

from dflash_convert.cli import main

if __name__ == "__main__":
    main()
