"""Who is there: SWIM with the Lifeguard extensions."""
