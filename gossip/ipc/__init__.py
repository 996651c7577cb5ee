"""What a trainer and its node say to each other: messages over a local socket, vectors in shared memory."""
