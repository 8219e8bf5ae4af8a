"""Rules for what comes in and goes out over the network: rate limits, webhook addresses and signatures."""
