"""The same reads as our service's, as others would write them: what it is compared with."""
