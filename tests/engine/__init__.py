"""A package, unlike the other folders of tests, so that fixtures of package scope end with its last test: an idle engine has
two gigabytes."""
