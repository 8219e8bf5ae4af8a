"""Rules for network traffic: rate limits of requests, addresses and signatures of webhooks."""
