"""The words of `transduce demo`: a small English-German dictionary.

English is on the left, German on the right. The tables hold only the forms that no rule of `inflection` produces.
Words are grouped by kind, so that people eat food and open doors, and not the reverse. No form of an English noun, verb
or adjective belongs to two words. This is one of the reasons why an English sentence has one German translation.
"""

from transduce.demo.entries import PEOPLE, adjectives_of, nouns_of, verbs_of
from transduce.demo.inflection import (
    PLACES,
    Adjective,
    Adverb,
    City,
    Determiner,
    Modal,
    Name,
    Noun,
    NounKind,
    Preposition,
    Pronoun,
    Verb,
)

ALIVE: tuple[NounKind, ...] = ("person", "animal")
GOODS: tuple[NounKind, ...] = ("text", "opening", "device", "clothing", "thing")
PORTABLE: tuple[NounKind, ...] = ("text", "clothing", "thing")
COLORED: tuple[NounKind, ...] = ("opening", "clothing", "thing")
FOOD: tuple[NounKind, ...] = ("food", "drink")


NOUNS: dict[NounKind, tuple[Noun, ...]] = {
    "person": nouns_of(
        "person",
        """
        man/men der Mann/Männer, woman/women die Frau/Frauen, child/children das Kind/Kinder,
        boy der Junge/Jungen*, girl das Mädchen/Mädchen, mother die Mutter/Mütter,
        father der Vater/Väter, brother der Bruder/Brüder, sister die Schwester/Schwestern,
        son der Sohn/Söhne, daughter die Tochter/Töchter, uncle der Onkel/Onkel, aunt die Tante/Tanten,
        friend der Freund/Freunde, neighbor der Nachbar/Nachbarn*, teacher der Lehrer/Lehrer,
        doctor der Arzt/Ärzte, student der Student/Studenten*, guest der Gast/Gäste,
        artist der Künstler/Künstler, queen die Königin/Königinnen, prince der Prinz/Prinzen*,
        actress die Schauspielerin/Schauspielerinnen
        """,
    ),
    "animal": nouns_of(
        "animal",
        """
        dog der Hund/Hunde, cat die Katze/Katzen, horse das Pferd/Pferde, bird der Vogel/Vögel,
        bear der Bär/Bären*, lion der Löwe/Löwen*, mouse/mice die Maus/Mäuse, cow die Kuh/Kühe
        """,
    ),
    "food": nouns_of(
        "food",
        """
        apple der Apfel/Äpfel, egg das Ei/Eier, banana die Banane/Bananen,
        tomato/tomatoes die Tomate/Tomaten, potato/potatoes die Kartoffel/Kartoffeln,
        cake der Kuchen/Kuchen, bread das Brot, cheese der Käse, soup die Suppe
        """,
    ),
    "drink": nouns_of(
        "drink",
        """
        water das Wasser, milk die Milch, coffee der Kaffee, tea der Tee, juice der Saft
        """,
    ),
    "text": nouns_of(
        "text",
        """
        book das Buch/Bücher, letter der Brief/Briefe, newspaper die Zeitung/Zeitungen,
        poem das Gedicht/Gedichte, story die Geschichte/Geschichten
        """,
    ),
    "opening": nouns_of(
        "opening",
        """
        door die Tür/Türen, window das Fenster/Fenster, suitcase der Koffer/Koffer, box die Kiste/Kisten
        """,
    ),
    "device": nouns_of(
        "device",
        """
        lamp die Lampe/Lampen, radio das Radio/Radios, computer der Computer/Computer,
        machine die Maschine/Maschinen
        """,
    ),
    "clothing": nouns_of(
        "clothing",
        """
        coat der Mantel/Mäntel, hat der Hut/Hüte, shirt das Hemd/Hemden, dress das Kleid/Kleider,
        jacket die Jacke/Jacken, shoe der Schuh/Schuhe
        """,
    ),
    "thing": nouns_of(
        "thing",
        """
        table der Tisch/Tische, chair der Stuhl/Stühle, car das Auto/Autos, bicycle das Fahrrad/Fahrräder,
        picture das Bild/Bilder, key der Schlüssel/Schlüssel, bag die Tasche/Taschen, clock die Uhr/Uhren,
        cup die Tasse/Tassen, flower die Blume/Blumen, gift das Geschenk/Geschenke,
        umbrella der Regenschirm/Regenschirme
        """,
    ),
    "building": nouns_of(
        "building",
        """
        house das Haus/Häuser, school die Schule/Schulen, hotel das Hotel/Hotels,
        museum das Museum/Museen, castle das Schloss/Schlösser,
        library/libraries die Bibliothek/Bibliotheken, station der Bahnhof/Bahnhöfe
        """,
    ),
    "area": nouns_of(
        "area",
        """
        garden der Garten/Gärten, city die Stadt/Städte, village das Dorf/Dörfer, park der Park/Parks,
        forest der Wald/Wälder, kitchen die Küche/Küchen, room das Zimmer/Zimmer
        """,
    ),
    "surface": nouns_of(
        "surface",
        """
        bridge die Brücke/Brücken, street die Straße/Straßen, mountain der Berg/Berge,
        ship das Schiff/Schiffe
        """,
    ),
}

ADJECTIVES: tuple[Adjective, ...] = (
    *adjectives_of(1, PEOPLE, "friendly freundlich, polite höflich, rich reich, poor arm"),
    *adjectives_of(1, ALIVE, "clever klug, brave mutig"),
    *adjectives_of(1, GOODS, "cheap billig"),
    *adjectives_of(1, (*GOODS, *FOOD), "expensive teuer/teur"),
    *adjectives_of(1, (*PORTABLE, *PLACES), "beautiful schön"),
    *adjectives_of(1, PLACES, "famous berühmt"),
    *adjectives_of(1, FOOD, "good gut"),
    *adjectives_of(2, PEOPLE, "tall groß"),
    *adjectives_of(2, ("animal", "opening", "device", "clothing", "thing", *PLACES), "big groß, small klein"),
    *adjectives_of(2, ("text",), "long lang, short kurz"),
    *adjectives_of(2, ("opening", "device", "thing"), "heavy schwer"),
    *adjectives_of(3, ALIVE, "tired müde/müd, happy glücklich, sad traurig, hungry hungrig, strong stark, sick krank"),
    *adjectives_of(3, ("opening", "device", "thing"), "broken kaputt", gradable=False),
    *adjectives_of(3, PLACES, "quiet ruhig, dark dunkel/dunkl, dirty schmutzig"),
    *adjectives_of(3, FOOD, "warm warm, cold kalt"),
    *adjectives_of(4, (*ALIVE, *GOODS, *PLACES), "old alt"),
    *adjectives_of(4, ALIVE, "young jung"),
    *adjectives_of(4, GOODS, "new neu"),
    *adjectives_of(4, FOOD, "fresh frisch, sweet süß"),
    *adjectives_of(5, COLORED, "red rot, blue blau, green grün", gradable=False),
    *adjectives_of(5, ("animal", *COLORED), "white weiß, black schwarz, brown braun", gradable=False),
)

(HAVE,) = verbs_of("have had haben hat gehabt", objects=("animal", *PORTABLE))
VERBS: tuple[Verb, ...] = (
    *verbs_of(
        """
        sleep slept schlafen schläft geschlafen, wait waited warten, play played spielen,
        swim swam schwimmen - geschwommen sein, come|back came zurück|kommen - gekommen sein,
        fall|asleep fell ein|schlafen schläft geschlafen sein
        """,
        complement="nothing",
        subjects=ALIVE,
        cases=(),
    ),
    *verbs_of(
        """
        sing sang singen - gesungen, dance danced tanzen, laugh laughed lachen, cry cried weinen,
        work worked arbeiten, cook cooked kochen, get|up got auf|stehen - gestanden sein,
        arrive arrived an|kommen - gekommen sein
        """,
        complement="nothing",
        cases=(),
    ),
    *verbs_of("see saw sehen sieht gesehen, hear heard hören", subjects=ALIVE, objects=ALIVE),
    *verbs_of("love loved lieben, watch watched beobachten, wake woke wecken, paint painted malen", objects=ALIVE),
    *verbs_of("invite invited ein|laden lädt geladen, call called an|rufen - gerufen", objects=PEOPLE),
    *verbs_of("visit visited besuchen, pick|up picked ab|holen", objects=PEOPLE),
    *verbs_of("find found finden - gefunden, look+for looked suchen", objects=(*ALIVE, *PORTABLE)),
    *verbs_of("buy bought kaufen, sell sold verkaufen", objects=(*GOODS, *FOOD)),
    *verbs_of("bring|along brought mit|bringen - gebracht, need needed brauchen", objects=(*PORTABLE, *FOOD)),
    *verbs_of("lose lost verlieren - verloren, forget forgot vergessen vergisst vergessen", objects=PORTABLE),
    *verbs_of("eat ate essen isst gegessen", objects=("food",)),
    *verbs_of("drink drank trinken - getrunken", objects=("drink",)),
    *verbs_of("taste tasted probieren, order ordered bestellen", objects=FOOD),
    *verbs_of("read - lesen liest gelesen, write wrote schreiben - geschrieben", objects=("text",)),
    *verbs_of("open opened auf|machen, close closed zu|machen", objects=("opening",)),
    *verbs_of(
        "turn|on turned ein|schalten, turn|off turned aus|schalten, repair repaired reparieren",
        objects=("device",),
    ),
    *verbs_of(
        "put|on - an|ziehen - gezogen, take|off took aus|ziehen - gezogen, wash washed waschen wäscht gewaschen",
        objects=("clothing",),
    ),
    *verbs_of(
        """
        help helped helfen hilft geholfen, thank thanked danken, trust trusted vertrauen,
        answer answered antworten, listen+to listened zu|hören, congratulate congratulated gratulieren
        """,
        objects=PEOPLE,
        cases=("dative",),
    ),
    *verbs_of("follow followed folgen - - sein", subjects=ALIVE, objects=ALIVE, cases=("dative",)),
    *verbs_of(
        """
        give gave geben gibt gegeben, show showed zeigen, send sent schicken, lend lent leihen - geliehen,
        offer offered an|bieten - geboten
        """,
        complement="two objects",
        objects=PORTABLE,
        cases=("dative", "accusative"),
    ),
    *verbs_of(
        "live lived wohnen, sit sat sitzen - gesessen, stand stood stehen - gestanden",
        complement="place",
        cases=(),
    ),
    *verbs_of(
        "go went gehen - gegangen sein, run ran laufen läuft gelaufen sein",
        complement="direction",
        subjects=ALIVE,
        cases=(),
    ),
    *verbs_of("travel traveled reisen - - sein", complement="direction", cases=()),
    *verbs_of(
        "say said sagen, believe believed glauben, know knew wissen weiß gewusst, hope hoped hoffen",
        complement="that",
        cases=(),
    ),
    *verbs_of("ask asked fragen", complement="whether", cases=()),
    *verbs_of(
        "try tried versuchen, promise promised versprechen verspricht versprochen, "
        "decide decided beschließen - beschlossen",
        complement="to",
        cases=(),
    ),
    HAVE,
    *verbs_of(
        "be was sein ist gewesen sein",
        complement="predicate",
        subjects=(*ALIVE, *GOODS, *FOOD, *PLACES),
        cases=(),
    ),
)

MODALS: tuple[Modal, ...] = (
    Modal("can", "", {"I": "kann", "he": "kann", "they": "können"}),
    Modal("must", "", {"I": "muss", "he": "muss", "they": "müssen"}, negatable=False),
    Modal("should", "", {"I": "sollte", "he": "sollte", "they": "sollten"}),
    Modal(None, "want to", {"I": "will", "he": "will", "they": "wollen"}),
    Modal("would", "like to", {"I": "möchte", "he": "möchte", "they": "möchten"}),
)
FUTURE = Modal("will", "", {"I": "werde", "he": "wird", "they": "werden"})

THE = Determiner(("the", "the"), "", "the", True)
THIS = Determiner(("this", "these"), "dies", "this", True)
OUR = Determiner(("our", "our"), "unser", "a", True)
DEFINITE: tuple[Determiner, ...] = (
    THIS,
    Determiner(("my", "my"), "mein", "a", True),
    OUR,
    Determiner(("his", "his"), "sein", "a", True),
    Determiner(("her", "her"), "ihr", "a", True),
    Determiner(("their", "their"), "ihr", "a", True),
)
A = Determiner(("a", ""), "ein", "a", False)
NO = Determiner(("no", "no"), "kein", "a", False)
QUANTIFIERS: tuple[Determiner, ...] = (
    Determiner(("every", ""), "jed", "this", False),
    Determiner(("", "all"), "all", "this", False),
    Determiner(("", "many"), "viel", "many", False),
    Determiner(("", "some"), "einig", "many", False),
    Determiner(("", "two"), "zwei", "two", False),
    Determiner(("", "three"), "drei", "two", False),
)

# Facts about single words that keep the sentences sensible.
KIN = frozenset({"mother", "father", "brother", "sister", "son", "daughter", "uncle", "aunt"})  # mostly with an owner
ONLY_ONE = frozenset({"mother", "father"})  # a person has only one
NOT_OWNED = frozenset(  # "meine Frau" means my wife, not my woman
    {"man", "woman", "boy", "girl", "queen", "prince", "actress", "bear", "lion", "mountain", "station"}
)
PASSING = frozenset({"tired", "happy", "sad", "hungry", "sick"})  # states that pass
LASTING = frozenset({"live", "have", "need", "love", "know", "trust"})  # lasting states: no time, no place
NOT_WILLED = frozenset(  # verbs that do not fit can, want to, should
    {"be", "have", "need", "love", "hear", "lose", "forget", "say", "believe", "know", "hope", "ask", "arrive"}
)

PRONOUNS: tuple[Pronoun, ...] = (
    Pronoun(("I", "me"), {"nominative": "ich", "accusative": "mich", "dative": "mir"}, "I", True),
    Pronoun(("we", "us"), {"nominative": "wir", "accusative": "uns", "dative": "uns"}, "they", True),
    Pronoun(("he", "him"), {"nominative": "er", "accusative": "ihn", "dative": "ihm"}, "he", False),
    Pronoun(("she", "her"), {"nominative": "sie", "accusative": "sie", "dative": "ihr"}, "he", False),
    Pronoun(("they", "them"), {"nominative": "sie", "accusative": "sie", "dative": "ihnen"}, "they", False),
)
NAMES = tuple(Name(name) for name in ("Anna", "Emma", "Julia", "Maria", "David", "Martin", "Peter", "Robert"))
CITIES: tuple[City, ...] = (
    City("Berlin", "Berlin"),
    City("Cologne", "Köln"),
    City("Munich", "München"),
    City("Rome", "Rom"),
    City("Vienna", "Wien"),
)

TIMES: tuple[Adverb, ...] = (
    Adverb("today", "heute"),
    Adverb("now", "jetzt", "present"),
    Adverb("every day", "jeden Tag", "present"),
    Adverb("yesterday", "gestern", "past"),
    Adverb("last week", "letzte Woche", "past"),
    Adverb("tomorrow", "morgen", "future"),
    Adverb("soon", "bald", "future"),
    Adverb("in the morning", "am Morgen"),
    Adverb("in the evening", "am Abend"),
    Adverb("on Sunday", "am Sonntag"),
    Adverb("in summer", "im Sommer"),
)
FREQUENCIES: tuple[Adverb, ...] = (
    Adverb("always", "immer"),
    Adverb("often", "oft"),
    Adverb("sometimes", "manchmal"),
)
NEVER = Adverb("never", "nie")
VERY = Adverb("very", "sehr")
SUBORDINATORS: tuple[Adverb, ...] = (
    Adverb("because", "weil"),
    Adverb("although", "obwohl"),
    Adverb("while", "während"),
    Adverb("if", "wenn", "present"),
)
JOINTS: tuple[Adverb, ...] = (Adverb("and", "und"), Adverb("but", ", aber"))
QUESTION_ADVERBS: tuple[Adverb, ...] = (Adverb("where", "wo"), Adverb("when", "wann"), Adverb("why", "warum"))

WHO = Pronoun(("who", "whom"), {"nominative": "wer", "accusative": "wen", "dative": "wem"}, "he", False)
WHAT = Pronoun(("what", "what"), {"nominative": "was", "accusative": "was"}, "he", False)

IN = Preposition("in", "in", "dative")
ON = Preposition("on", "auf", "dative")
TO = Preposition("to", "nach", "dative")
INTO = Preposition("into", "in", "accusative")
WITH = Preposition("with", "mit", "dative")
WITHOUT = Preposition("without", "ohne", "accusative")
FOR = Preposition("for", "für", "accusative")
COMPANY: dict[Preposition, frozenset[str]] = {  # with the verbs that take it
    WITH: frozenset({"play", "sing", "dance", "work", "cook", "arrive", "come"}),
    WITHOUT: frozenset({"play", "sing", "dance", "work", "cook", "arrive", "come"}),
    FOR: frozenset({"sing", "cook", "work", "buy", "write", "paint", "repair"}),
}
AT: dict[NounKind, tuple[Preposition, ...]] = {
    "area": (IN,),
    "surface": (ON,),
    "building": (
        IN,
        Preposition("behind", "hinter", "dative"),
        Preposition("in front of", "vor", "dative"),
        Preposition("next to", "neben", "dative"),
    ),
}
