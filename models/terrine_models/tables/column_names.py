"""What the name of a column says: people, records, contacts or quantities.

In English, German, French, Spanish, Italian, Dutch and Portuguese, without accents. A name counts
as a whole, so that `patients`, `width` and `nrooms` are none of an identifier; patient_id,
PatientID and "Patient ID" are one name.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence


def _each_of(*texts: str) -> frozenset[str]:
    """The words in these texts."""
    return frozenset(word for text in texts for word in text.split())


def _one_of(*texts: str) -> str:
    """A pattern for one of the words in these texts."""
    return f"({'|'.join(sorted(_each_of(*texts)))})"


_PEOPLE = (
    "patient person subject individual participant insured member customer client user employee "
    "worker student pupil citizen respondent interviewee borrower applicant tenant voter viewer "
    "donor athlete player taxpayer policyholder cardholder subscriber panelist learner",
    "patientin proband probandin subjekt teilnehmer teilnehmerin versicherter versicherte kunde "
    "kundin klient klientin mitglied mitarbeiter mitarbeiterin beschaeftigter arbeiter "
    "arbeitnehmer angestellter benutzer nutzer schueler schuelerin buerger einwohner befragter",
    "patiente personne sujet individu participante assure assuree membre cliente usager "
    "utilisateur employe employee salarie travailleur ouvrier etudiant eleve citoyen adherent",
    "paciente persona sujeto individuo asegurado miembro socio usuario empleado trabajador "
    "estudiante alumno ciudadano afiliado encuestado",
    "paziente soggetto partecipante assicurato membro utente dipendente impiegato lavoratore "
    "studente alunno cittadino",
    "persoon proefpersoon deelnemer verzekerde klant gebruiker medewerker werknemer leerling",
    "pessoa sujeito segurado utilizador empregado funcionario trabalhador aluno cidadao",
)
"""Nouns for one person; in the plural they are counts of people."""
_STEMS = (
    *_PEOPLE,
    "pat pers staff personnel household hh family resident candidate driver passenger",
    "patienten personen personal probanden individuen versicherten kunden kd mitglieds "
    "mitglieder mitarbeiter beschaeftigten angestellten studenten matrikel buerger haushalts "
    "haushalt familien sozialversicherungs rentenversicherungs krankenversicherungs steuer "
    "steueridentifikations personalausweis ausweis",
    "foyer menage famille hogar familia famiglia",
    "lid leden klanten persoons personeels burgerservice huishouden",
)
"""What is one for a person only together with a word for a number."""
_KEYS = (
    "id ident identifier key uuid guid uid",
    "identifiant identificador identificativo identificatore identifikator",
    "kennung kennziffer kennzeichen schluessel",
)
_NUMBERS = ("nr no nro number nummer numero",)
_CODES = ("num code kode codigo codice cod hash pseudonym pseudonyme token ref",)
_PERSONAL_NUMBERS = (
    "mrn medicalrecordnumber medicalrecordno pid ssn socialsecuritynumber nhs nhsno nhsnumber "
    "passport passportno passportnumber nationalid svnr ahv ahvnr persnr bsn dni nif cpf pesel "
    "codicefiscale matricule matricola legajo"
)
_KEY, _NUMBER = _one_of(*_KEYS), _one_of(*_NUMBERS)
_ANY_ID = _one_of(*_KEYS, *_NUMBERS, *_CODES)
_ID_BEFORE = _one_of(*_KEYS, *_NUMBERS, "code codigo codice cod")
_OF = "(de|du|d|des|del|della|di|do|da|van|von|l|la|le)?"
_STEM = _one_of(*_STEMS)
_BARE_PERSON = re.compile(_one_of(*_PEOPLE, "pid"))
_PERSON = re.compile(
    rf"{_one_of(*_PEOPLE)}|{_one_of(_PERSONAL_NUMBERS)}{_ANY_ID}*|{_STEM}{_ANY_ID}+|"
    rf"{_ID_BEFORE}{_OF}{_STEM}{_ANY_ID}*"
)
_RECORD = (
    "case record encounter admission hadm visit stay icustay episode account row entry obs "
    "observation sequence seq serial lfd laufende fall akten satz zeilen dossier caso "
    "expediente cartella historia"
)
_NUMBERED_RECORD = (
    "case record encounter admission account row entry obs serial seq lfd laufende fall akten satz "
    "zeilen dossier caso expediente cartella historia"
)
_RECORD_NAME = re.compile(
    rf"{_one_of(_RECORD)}?{_KEY}{_one_of('code kode num', *_NUMBERS)}?|"
    rf"nr|no|nro|kennnummer|rownames|"
    rf"{_one_of(_NUMBERED_RECORD)}{_NUMBER}|{_ID_BEFORE}{_OF}{_one_of(_RECORD)}"
)
_LAST_WORD = re.compile(rf"{_KEY}|{_NUMBER}")
_COMPOUND = re.compile(r".{3,}(nummer|kennung|nr)")
_CONTACT = re.compile(
    rf"({_one_of(*_PEOPLE)}|patienten|kunden)?"
    r"(first|last|sur|family|full|given|middle|vor|nach|familien)?name|"
    r"e?mail(address)?|(tele|mobile)?phone(number)?|telefon(nummer)?|(street|home|post)?address|"
    r"strasse|street|adresse|anschrift|prenom|nom(defamille)?|apellidos?|cognome|"
    r"achternaam|voornaam|courriel|correo|direccion|indirizzo|telefono|endereco"
)
_PLACE = re.compile(r"countr|nation|land|staat|continent|kontinent|region|iso|pa[iy]s")
_UNITS = _each_of(
    "mm cm dm m km kg g mg ug lb lbs oz ml cl dl l mmhg bpm kmh mph mpg hp ps kw kwh watt volt db "
    "hz s sec secs second seconds ms min mins minute minutes h hr hrs hour hours day days week "
    "weeks month months year years yr yrs percent pct usd eur euro euros dollar dollars chf gbp "
    "sqft sqm ha acres"
)
"""The last word of a quantity's name, or if it is long any."""
_QUANTITIES = _each_of(
    "year yr month week day hour age length width height depth size weight mass area volume "
    "distance speed temp temperature pressure pulse rate ratio score points price cost income "
    "revenue salary wage wages pay amount balance sum total count quantity qty value population "
    "pop rank "
    "limit loan debt tax sales profit turnover budget latitude longitude lat lon lng elevation "
    "altitude dose level concentration mileage odometer time timestamp date duration visits rooms "
    "visit wave round trial session period version page floor step lag "
    "jahr monat woche tag stunde alter laenge breite hoehe tiefe groesse gewicht masse flaeche "
    "volumen entfernung abstand dauer zeit zeitpunkt datum temperatur druck puls preis kosten "
    "einkommen gehalt lohn umsatz gewinn betrag summe saldo anzahl menge wert einwohner prozent "
    "annee an mois semaine jour heure longueur largeur hauteur taille poids surface duree prix "
    "cout revenu salaire montant solde somme nombre quantite valeur "
    "ano mes semana dia hora edad longitud ancho altura peso superficie distancia duracion precio "
    "costo ingreso salario importe suma cantidad valor poblacion "
    "anno mese settimana giorno ora eta lunghezza larghezza altezza distanza durata prezzo reddito "
    "stipendio importo somma valore quantita "
    "jaar maand dag uur leeftijd lengte hoogte gewicht oppervlakte afstand duur prijs inkomen "
    "bedrag aantal waarde idade preco renda quantidade"
)
"""A word of a quantity's name: what is measured, counted, or put in an order."""
_GERMAN_QUANTITY = re.compile(
    r".+(jahr|gewicht|laenge|breite|hoehe|groesse|flaeche|preis|kosten|einkommen|gehalt|umsatz|"
    r"betrag|summe|dauer|anzahl|menge|alter|temperatur|druck)"
)
_PEOPLE_COUNTED = re.compile(rf"{_one_of(*_PEOPLE)}(s|e?n)")
_COUNT = re.compile(r"(n|num|number|no|nr|nb|count|anzahl|nombre)[ _](of[ _])?\w*(s|en|er)")
_UMLAUTS = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss", "°": "o", "#": " no "})


def names_person(name: str) -> bool:
    """Whether it is one for people: patient, Personalnummer, numéro de client."""
    return _PERSON.fullmatch(_letters(name)) is not None


def is_noun_for_person(name: str) -> bool:
    """Whether it is a noun alone, such as subject, which may mean something else; pid is a party,
    too."""
    return _BARE_PERSON.fullmatch(_letters(name)) is not None


def names_record(name: str) -> bool:
    """Whether it is one for records, cases or stays, or just "id"."""
    return _RECORD_NAME.fullmatch(_letters(name)) is not None


def names_identifier(name: str) -> bool:
    """Whether it is one for what has a number: a record, or store_id, Vertragsnummer, id_product.

    week_no is a quantity.
    """
    words = _words(name)
    if names_record(name):
        return True
    if not words or names_quantity(name):
        return False
    ends = _LAST_WORD.fullmatch(words[-1]) or _COMPOUND.fullmatch(words[-1])
    return ends is not None or words[0] == "id"


def names_contact(name: str) -> bool:
    """Whether it is one for names or contact details."""
    return _CONTACT.fullmatch(_letters(name)) is not None


def names_place(name: str) -> bool:
    """Whether it may be one for countries and the like."""
    return _PLACE.search(_letters(name)) is not None


def names_quantity(name: str) -> bool:
    """Whether it is one for what is measured or counted: yearVeh, body_mass_g, Körpergewicht,
    patients."""
    words = _words(name)
    if not words:
        return False
    units = words[-1] in _UNITS or any(len(word) > 3 for word in _UNITS.intersection(words))
    if units or not _QUANTITIES.isdisjoint(words):
        return True
    counted = len(words) > 1 and _COUNT.fullmatch(" ".join(words)) is not None
    several = len(words) == 1 and _PEOPLE_COUNTED.fullmatch(words[0]) is not None
    return counted or several or any(map(_GERMAN_QUANTITY.fullmatch, words))


def _letters(name: str) -> str:
    """All letters and digits of a name, without spaces and accents."""
    return "".join(_words(name))


def _words(name: str) -> Sequence[str]:
    """The words of a name in camelCase, snake_case or with spaces, without accents."""
    name = re.sub(r"(?<=[a-zäöüß0-9])(?=[A-ZÄÖÜ])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
    plain = unicodedata.normalize("NFKD", name.lower().translate(_UMLAUTS))
    plain = "".join(each for each in plain if not unicodedata.combining(each))
    return re.findall(r"[^\W_]+", plain)
