"""What runs in the child: no module here may import anything that can hold the token."""
