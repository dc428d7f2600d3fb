"""Hours of mixed traffic in minutes: does anything grow that should not?"""
