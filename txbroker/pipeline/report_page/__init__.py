"""The report page: charts as SVG, HTML, numbers. Pure but for Spark columns."""
