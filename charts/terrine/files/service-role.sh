# Runs once, when PostgreSQL's image first makes the database: the role that the servers log in as.
# What it may do is granted by `terrine init --service-role terrine_service`.
psql --no-psqlrc --quiet --set=ON_ERROR_STOP=1 --username="$POSTGRES_USER" --dbname="$POSTGRES_DB" <<'SQL'
\set password `cat /run/secrets/service_password`
CREATE ROLE terrine_service LOGIN PASSWORD :'password';
SQL
