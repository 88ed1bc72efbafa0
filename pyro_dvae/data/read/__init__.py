"""Read files, folders, arrays and named data sets as rows; no stored value is changed."""
