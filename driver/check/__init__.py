"""`agent-sandbox-driver check`: looks at everything that a driver needs here, and says what to do. Pulls nothing."""
