"""From files, folders, arrays and named sets to rows as stored."""
