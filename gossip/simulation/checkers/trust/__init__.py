"""Who is suspected, and by what evidence."""
