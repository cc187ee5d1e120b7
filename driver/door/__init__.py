"""The model door: a loopback proxy that lends programs the model and keeps the token to itself."""
