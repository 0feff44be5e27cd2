"""The own tests of applications and extensions of Flask, run with its objects adopted."""
