"""Rows of people's files as numbers: the same for owners, students and the server.

schema: TableSchema                                 # of `terrine_protocol.schema`
encode_table(Path("unlabelled.csv"), schema)        # of `encoding`: float32 [N, D]
"""
