"""Two tiers at full load: do both stay within their capacities, and is every byte right?"""
