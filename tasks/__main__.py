"""`python -m tasks fit|validate|test|predict --config FILE`."""

from tasks.cli import main

if __name__ == "__main__":
    main()
